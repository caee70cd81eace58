//! Our store beside hand-written SQLite and the Python original's design.
//!
//! `cargo bench --bench compare -- [ROW-FILTER] [--rounds N]`. Figures are medians, over the
//! rounds, of ratios within a round: the machine's mood cancels out, since in each round the
//! contestants take short turns one after another.
//!
//! No criterion: it measures one thing to its end before it begins the next.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its figures"
)]

mod ours;
mod python;
mod raw;
mod report;
mod rows;
mod workload;

use std::error::Error;
use std::path::{Path, PathBuf};

use rows::{Row, Work};
use workload::Workload;

/// The result of everything here.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// One that does the work of a row, on a database of its own.
pub(crate) trait Contestant {
    /// Makes the database in `folder`, with what the row's work needs.
    fn open(&mut self, row: &Row, folder: &Path) -> Result<()>;

    /// Does the work `count` times and gives the nanoseconds of one: the median where single times
    /// are taken, else the mean.
    fn run(&mut self, work: Work, count: u32) -> Result<f64>;

    /// Closes the database.
    fn close(&mut self) -> Result<()>;
}

struct Arguments {
    filter: String,
    rounds: usize,
}

impl Arguments {
    fn read() -> Result<Self> {
        let mut arguments = Self {
            filter: String::new(),
            rounds: 20,
        };
        let mut given = std::env::args().skip(1);
        while let Some(argument) = given.next() {
            match argument.as_str() {
                // cargo says this to every benchmark.
                "--bench" => {}
                "--rounds" => {
                    let rounds = given.next().ok_or("--rounds needs a number")?;
                    arguments.rounds = rounds.parse()?;
                }
                option if option.starts_with('-') => {
                    return Err(format!("what is {option}?").into());
                }
                _ => arguments.filter = argument,
            }
        }
        if arguments.rounds == 0 {
            return Err("--rounds needs at least 1".into());
        }
        Ok(arguments)
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::read()?;
    let workload = Workload::new();
    let disk = std::env::var_os("HERMES_BENCH_DISK")
        .map_or_else(|| PathBuf::from("target/bench-disk"), PathBuf::from);
    let mut results = Vec::new();
    for row in rows::all() {
        if row.name.contains(&arguments.filter) {
            eprintln!("{} …", row.name);
            let folder = row.place.folder(&disk)?;
            let measured = measure(&row, &workload, folder.path(), arguments.rounds)?;
            results.push((row, measured));
        }
    }
    print!("{}", report::table(&results));
    Ok(())
}

/// Nanoseconds of one unit of work by each contestant, in the order ours, raw, Python, a round.
fn measure(row: &Row, workload: &Workload, folder: &Path, rounds: usize) -> Result<Vec<[f64; 3]>> {
    let mut ours = ours::Ours::new(workload)?;
    let mut raw = raw::Raw::new(workload);
    let mut python = python::Python::start(workload, folder)?;
    let mut contestants: [(&str, &mut dyn Contestant); 3] = [
        ("ours", &mut ours),
        ("raw", &mut raw),
        ("python", &mut python),
    ];
    for (name, contestant) in &mut contestants {
        let own = folder.join(name);
        std::fs::create_dir(&own)?;
        contestant.open(row, &own)?;
    }
    let mut measured = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let mut times = [0.0; 3];
        for turn in 0..3 {
            // Who begins changes, so that nobody always follows the same neighbour.
            let number = (round + turn) % 3;
            let contestant = contestants.get_mut(number).ok_or("three contestants")?;
            contestant.1.run(row.work, row.count.div_ceil(10))?;
            let time = contestant.1.run(row.work, row.count)?;
            *times.get_mut(number).ok_or("three contestants")? = time;
        }
        measured.push(times);
    }
    for (_, contestant) in &mut contestants {
        contestant.close()?;
    }
    Ok(measured)
}
