//! The smallest skill: one action, nothing to grant.

mod component {
    #![allow(unsafe_code, reason = "generated: here values cross into and out of the component")]
    wit_bindgen::generate!({ path: "wit", world: "hello" });
    export!(Hello);
    use super::Hello;
}

struct Hello;

impl component::Guest for Hello {
    fn greet(name: String) -> String {
        let name = name.trim();
        format!("Hello, {}!", if name.is_empty() { "world" } else { name })
    }
}

#[cfg(test)]
mod tests {
    use super::{Hello, component::Guest as _};

    #[test]
    fn greets_by_name() {
        assert_eq!(Hello::greet("Ada".into()), "Hello, Ada!");
    }

    #[test]
    fn greets_the_world_when_no_name_is_given() {
        assert_eq!(Hello::greet("  ".into()), "Hello, world!");
    }
}
