//! Rebuilds when a migration is added: `migrate!` alone does not notice new files.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
