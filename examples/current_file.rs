//! Makes a file at the current schema: what the build checks its statements against.

use hermes_state::SessionStore;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("usage: current_file PATH")?;
    SessionStore::open(path).await?.close().await?;
    Ok(())
}
