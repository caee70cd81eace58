//! From times to a table.

use std::fmt::Write as _;
use std::time::Duration;

use crate::rows::{Figure, Row};

/// Nanoseconds of the middle one.
pub(crate) fn median_of(times: &[Duration]) -> f64 {
    let mut times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e9).collect();
    median(&mut times)
}

/// Nanoseconds of one of `count` that took `time` together.
pub(crate) fn mean_of(time: Duration, count: u32) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(count)
}

/// The middle one of `values`; the mean of the two in the middle if their number is even.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied();
    let lower = values.get(values.len().saturating_sub(1) / 2).copied();
    match (lower, upper) {
        (Some(lower), Some(upper)) => f64::midpoint(lower, upper),
        _ => f64::NAN,
    }
}

/// A line for each row: the medians of each contestant, the medians of the rounds' ratios with
/// their quartiles, the goals.
pub(crate) fn table(results: &[(Row, Vec<[f64; 3]>)]) -> String {
    let mut table = format!(
        "{:<37} {:>11} {:>11} {:>11}   {:<29} {:<29}\n",
        "", "ours", "raw", "Python", "ours : raw", "ours : Python"
    );
    for (row, rounds) in results {
        let each =
            |pick: fn(&[f64; 3]) -> f64| median(&mut rounds.iter().map(pick).collect::<Vec<_>>());
        let against_raw = ratio(row.figure, rounds, |[ours, raw, _]| (*ours, *raw));
        let against_python = ratio(row.figure, rounds, |[ours, _, python]| (*ours, *python));
        // Writing into a string never fails.
        let _written = writeln!(
            table,
            "{:<37} {:>11} {:>11} {:>11}   {:<29} {:<29}",
            row.name,
            shown(row.figure, each(|[ours, _, _]| *ours)),
            shown(row.figure, each(|[_, raw, _]| *raw)),
            shown(row.figure, each(|[_, _, python]| *python)),
            judged(row.figure, &against_raw, row.goals.raw),
            judged(row.figure, &against_python, row.goals.python),
        );
    }
    table
}

struct Ratio {
    quartiles: [f64; 2],
    median: f64,
}

fn ratio(figure: Figure, rounds: &[[f64; 3]], pick: fn(&[f64; 3]) -> (f64, f64)) -> Ratio {
    let mut ratios: Vec<f64> = rounds
        .iter()
        .map(pick)
        .map(|(ours, theirs)| match figure {
            Figure::Time => ours / theirs,
            Figure::Rate { .. } => theirs / ours,
        })
        .collect();
    let median = median(&mut ratios);
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    Ratio {
        quartiles: [
            at(ratios.len() / 4),
            at((ratios.len() * 3 / 4).min(ratios.len() - 1)),
        ],
        median,
    }
}

fn shown(figure: Figure, nanoseconds: f64) -> String {
    match figure {
        Figure::Time if nanoseconds < 1e6 => format!("{:.1} µs", nanoseconds / 1e3),
        Figure::Time => format!("{:.2} ms", nanoseconds / 1e6),
        Figure::Rate { rows } => format!("{:.2} k/s", f64::from(rows) / nanoseconds * 1e6),
    }
}

fn judged(figure: Figure, ratio: &Ratio, goal: Option<f64>) -> String {
    let [low, high] = ratio.quartiles;
    let found = format!("{:.2} ({low:.2}–{high:.2})", ratio.median);
    let Some(goal) = goal else { return found };
    let (sign, met) = match figure {
        Figure::Time => ('≤', ratio.median <= goal),
        Figure::Rate { .. } => ('≥', ratio.median >= goal),
    };
    format!(
        "{found} {sign} {goal} {}",
        if met { "met" } else { "MISSED" }
    )
}
