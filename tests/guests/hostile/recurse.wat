;; Calls itself for ever.
(component
  (core module $guest
    (func $deeper (export "run") (result i32) (i32.add (call $deeper) (i32.const 1))))
  (core instance $guest (instantiate $guest))
  (func (export "run") (result u32) (canon lift (core func $guest "run"))))
