//! The `skillhost` program.

/// glibc gives the heap of a thread its memory a page at a time, each by a call of the system: a quarter of what starting with
/// a thousand skills takes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    std::process::exit(skillhost::cli::main());
}
