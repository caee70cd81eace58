//! The retry combinator, on a clock that stands still unless somebody waits.

use std::cell::Cell;
use std::future::ready;
use std::num::NonZeroU32;
use std::rc::Rc;
use std::time::Duration;

use hermes_state::retry::{GaveUp, Reason, RetryPolicy, retry};
use tokio::time::{Instant, timeout};

/// A failure that has nothing to do with databases.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Weather {
    #[error("rain on day {0}")]
    Rain(u32),
    #[error("flood")]
    Flood,
}

fn passing(weather: &Weather) -> bool {
    matches!(weather, Weather::Rain(_))
}

fn far_away() -> Instant {
    Instant::now() + Duration::from_hours(1)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn waits(policy: RetryPolicy, seed: u64) -> Vec<Duration> {
    let mut rng = fastrand::Rng::with_seed(seed);
    policy.waits(move || rng.f64()).collect()
}

/// The timer counts whole milliseconds and never wakes early.
fn slept(waits: &[Duration]) -> Duration {
    waits
        .iter()
        .map(|wait| {
            let part = wait.subsec_nanos() % 1_000_000;
            let missing = if part == 0 { 0 } else { 1_000_000 - part };
            *wait + Duration::from_nanos(missing.into())
        })
        .sum()
}

/// Rains `rainy` times, then gives the number of the day. The state counts the days.
async fn after_rain(
    rainy: u32,
    waits: impl Iterator<Item = Duration>,
    deadline: Instant,
) -> (u32, Result<u32, GaveUp<Weather>>) {
    retry(0, waits, deadline, passing, |day: u32| {
        let today = day + 1;
        ready((
            today,
            if today > rainy {
                Ok(today)
            } else {
                Err(Weather::Rain(today))
            },
        ))
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_never_passes_is_tried_fifteen_times() {
    let start = Instant::now();
    let drawn = waits(RetryPolicy::new(), 1);
    let (days, result) = after_rain(u32::MAX, drawn.iter().copied(), far_away()).await;
    let gave_up = result.unwrap_err();

    assert_eq!(days, 15);
    assert_eq!(gave_up.attempts, 15);
    assert_eq!(gave_up.reason, Reason::Exhausted);
    assert_eq!(gave_up.last, Weather::Rain(15));
    assert_eq!(gave_up.to_string(), "gave up after 15 attempts");
    assert_eq!(drawn.len(), 14);
    assert_eq!(start.elapsed(), slept(&drawn));
}

#[tokio::test(start_paused = true)]
async fn the_number_of_tries_is_the_one_asked_for() {
    for tries in [1, 2, 3, 40] {
        let policy = RetryPolicy::new().tries(NonZeroU32::new(tries).unwrap());
        let (days, result) = after_rain(u32::MAX, policy.waits(|| 0.5), far_away()).await;
        assert_eq!(days, tries);
        assert_eq!(result.unwrap_err().attempts, tries);
    }
}

#[test]
fn waits_lie_between_20_and_150_ms_and_spread_over_the_range() {
    let policy = RetryPolicy::new().tries(NonZeroU32::new(10_001).unwrap());
    let drawn = waits(policy, 7);
    assert_eq!(drawn.len(), 10_000);
    // Ten equal parts of the range: an even spread puts 1,000 in each, give or take 30.
    let mut parts = [0_u32; 10];
    for wait in &drawn {
        assert!(
            (millis(20)..=millis(150)).contains(wait),
            "{wait:?} is outside"
        );
        let part = (wait.as_micros() - 20_000) / 13_000;
        parts[usize::try_from(part).unwrap().min(9)] += 1;
    }
    assert!(
        parts.iter().all(|count| (850..=1150).contains(count)),
        "uneven: {parts:?}"
    );
}

#[test]
fn the_ends_of_the_range_are_reached() {
    let first = |unit: f64| RetryPolicy::new().waits(move || unit).next().unwrap();
    assert_eq!(first(0.0), millis(20));
    assert_eq!(first(1.0), millis(150));
}

#[test]
fn a_generator_out_of_range_is_held_to_the_bounds() {
    for unit in [-1.0, 2.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
        for wait in RetryPolicy::new().waits(|| unit) {
            assert!(
                (millis(20)..=millis(150)).contains(&wait),
                "{unit} gives {wait:?}"
            );
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_waits_and_another_seed_others() {
    let policy = RetryPolicy::new();
    assert_eq!(waits(policy, 3), waits(policy, 3));
    assert_ne!(waits(policy, 3), waits(policy, 4));
}

#[test]
fn bounds_of_the_wait_are_checked() {
    let hour = Duration::from_hours(1);
    for (min, max) in [
        (millis(151), millis(150)),
        (Duration::ZERO, hour + Duration::from_nanos(1)),
        (Duration::MAX, Duration::MAX),
    ] {
        let refused = RetryPolicy::new().wait(min, max).unwrap_err();
        assert!(
            matches!(
                refused,
                hermes_state::Error::InvalidInput {
                    what: "retry wait",
                    ..
                }
            ),
            "{min:?} to {max:?}: {refused:?}"
        );
    }
    for (min, max) in [
        (Duration::ZERO, Duration::ZERO),
        (millis(5), millis(5)),
        (Duration::ZERO, hour),
    ] {
        let policy = RetryPolicy::new().wait(min, max).unwrap();
        let drawn = waits(policy, 5);
        assert_eq!(drawn.len(), 14);
        assert!(drawn.iter().all(|wait| (min..=max).contains(wait)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_permanent_failure_is_tried_once() {
    let start = Instant::now();
    let (tries, result) = retry(
        0,
        RetryPolicy::new().waits(|| 0.5),
        far_away(),
        passing,
        |tries: u32| ready((tries + 1, Err::<(), _>(Weather::Flood))),
    )
    .await;
    let gave_up = result.unwrap_err();

    assert_eq!(tries, 1);
    assert_eq!(gave_up.attempts, 1);
    assert_eq!(gave_up.reason, Reason::Permanent);
    assert_eq!(gave_up.last, Weather::Flood);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_turns_permanent_ends_the_trying() {
    let (_, result) = retry(
        0,
        RetryPolicy::new().waits(|| 0.5),
        far_away(),
        passing,
        |day: u32| {
            let weather = if day == 2 {
                Weather::Flood
            } else {
                Weather::Rain(day)
            };
            ready((day + 1, Err::<(), _>(weather)))
        },
    )
    .await;
    let gave_up = result.unwrap_err();
    assert_eq!(gave_up.attempts, 3);
    assert_eq!(gave_up.reason, Reason::Permanent);
}

#[tokio::test(start_paused = true)]
async fn success_after_failures_waits_the_sum_of_the_waits() {
    let list = [31, 20, 150, 77].map(millis);
    for rainy in 0..=4 {
        let start = Instant::now();
        let (days, result) = after_rain(rainy, list.into_iter(), far_away()).await;
        assert_eq!(result.unwrap(), rainy + 1);
        assert_eq!(days, rainy + 1);
        let waited: Duration = list.iter().take(usize::try_from(rainy).unwrap()).sum();
        assert_eq!(start.elapsed(), waited);
    }
}

#[tokio::test(start_paused = true)]
async fn the_state_comes_back_with_success_and_with_failure() {
    let connection = || String::from("connection");
    let (state, result) = retry(
        connection(),
        std::iter::empty(),
        far_away(),
        passing,
        |state| ready((state + ", used", Ok::<_, Weather>(()))),
    )
    .await;
    assert_eq!(state, "connection, used");
    result.unwrap();

    let (state, result) = retry(
        connection(),
        [millis(20)].into_iter(),
        far_away(),
        passing,
        |state| ready((state + ", used", Err::<(), _>(Weather::Rain(1)))),
    )
    .await;
    assert_eq!(state, "connection, used, used");
    assert_eq!(result.unwrap_err().reason, Reason::Exhausted);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_it_before_a_wait_that_would_pass_it() {
    let start = Instant::now();
    let deadline = start + millis(250);
    // After two waits 50 ms are left: the third wait does not begin.
    let waits = std::iter::repeat(millis(100));
    let (days, result) = after_rain(u32::MAX, waits, deadline).await;
    let gave_up = result.unwrap_err();

    assert_eq!(gave_up.reason, Reason::Deadline);
    assert_eq!(gave_up.attempts, 3);
    assert_eq!(gave_up.last, Weather::Rain(3));
    assert_eq!(days, 3);
    assert_eq!(start.elapsed(), millis(200));
}

#[tokio::test(start_paused = true)]
async fn a_try_may_come_at_the_deadline_but_not_after_it() {
    for (before_deadline, attempts) in [(99, 1), (100, 2), (101, 2)] {
        let start = Instant::now();
        let deadline = start + millis(before_deadline);
        let waits = std::iter::repeat(millis(100));
        let (_, result) = after_rain(u32::MAX, waits, deadline).await;
        let gave_up = result.unwrap_err();
        assert_eq!(gave_up.reason, Reason::Deadline);
        assert_eq!(gave_up.attempts, attempts, "{before_deadline} ms");
        assert!(Instant::now() <= deadline);
    }
}

#[tokio::test(start_paused = true)]
async fn the_clock_never_passes_the_deadline() {
    for seed in 0..200 {
        let start = Instant::now();
        let deadline = start + millis(40 + 10 * seed);
        let waits = waits(RetryPolicy::new(), seed);
        let (_, result) = after_rain(u32::MAX, waits.into_iter(), deadline).await;
        assert!(Instant::now() <= deadline);
        let reason = result.unwrap_err().reason;
        // 14 waits of at least 20 ms do not fit into less than 280 ms.
        if deadline - start < millis(280) {
            assert_eq!(reason, Reason::Deadline);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_in_the_past_still_allows_the_first_try() {
    let deadline = Instant::now();
    tokio::time::advance(millis(1)).await;
    let (_, result) = after_rain(0, std::iter::empty(), deadline).await;
    assert_eq!(result.unwrap(), 1);

    let (_, result) = after_rain(1, std::iter::repeat(Duration::ZERO), deadline).await;
    assert_eq!(result.unwrap_err().reason, Reason::Deadline);
}

/// The end of such a wait is beyond what the clock can count, which once was a panic.
#[tokio::test(start_paused = true)]
async fn an_endless_wait_counts_as_past_the_deadline() {
    let (_, result) = after_rain(u32::MAX, std::iter::repeat(Duration::MAX), far_away()).await;
    let gave_up = result.unwrap_err();
    assert_eq!(gave_up.attempts, 1);
    assert_eq!(gave_up.reason, Reason::Deadline);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_in_a_wait_runs_no_further_attempt() {
    let tries = Rc::new(Cell::new(0));
    let counter = Rc::clone(&tries);
    let future = retry(
        (),
        std::iter::repeat(millis(100)),
        far_away(),
        passing,
        move |()| {
            counter.set(counter.get() + 1);
            ready(((), Err::<(), _>(Weather::Rain(counter.get()))))
        },
    );
    timeout(millis(150), future).await.unwrap_err();
    assert_eq!(tries.get(), 2);
    assert_eq!(Rc::strong_count(&tries), 1, "the attempt was kept");

    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(tries.get(), 2);
}

#[test]
fn an_attempt_that_is_dropped_takes_the_state_along() {
    let state = Rc::new(());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let inner = Rc::clone(&state);
    runtime.block_on(async move {
        let future = retry(
            inner,
            std::iter::empty(),
            far_away(),
            passing,
            |state| async {
                tokio::time::sleep(Duration::from_mins(1)).await;
                (state, Ok::<_, Weather>(()))
            },
        );
        timeout(Duration::from_secs(1), future).await.unwrap_err();
    });
    assert_eq!(Rc::strong_count(&state), 1);
}

#[test]
fn the_last_failure_is_the_source() {
    let gave_up = GaveUp {
        attempts: 2,
        reason: Reason::Exhausted,
        last: Weather::Flood,
    };
    let source = std::error::Error::source(&gave_up).unwrap();
    assert_eq!(source.to_string(), "flood");
}

/// Compiles only if the future is `Send` when its parts are; it runs on another thread besides.
#[tokio::test]
async fn the_future_is_send_when_its_parts_are() {
    let task = tokio::spawn(retry(
        vec![1_u8],
        RetryPolicy::new()
            .wait(Duration::ZERO, Duration::ZERO)
            .unwrap()
            .waits(|| 0.0),
        far_away(),
        passing,
        |state: Vec<u8>| async move {
            tokio::task::yield_now().await;
            (state, Ok::<_, Weather>("done"))
        },
    ));
    let (state, result) = task.await.unwrap();
    assert_eq!(state, [1]);
    assert_eq!(result.unwrap(), "done");
}
