//! Waits, or computes without end.

mod component {
    wit_bindgen::generate!({ path: "wit", world: "bench" });
    export!(Bench);
    use super::Bench;
}

struct Bench;

impl component::Guest for Bench {
    fn wait(milliseconds: u64) {
        println!("waiting");
        std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    }

    fn spin() {
        println!("computing");
        let mut n = 0u64;
        loop {
            n = std::hint::black_box(n.wrapping_add(1));
        }
    }

    fn flood() {
        loop {
            println!("{}", "x".repeat(1_000));
        }
    }
}
