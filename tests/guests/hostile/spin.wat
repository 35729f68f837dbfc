;; Computes for ever.
(component
  (core module $guest
    (func (export "run") (loop $again (br $again))))
  (core instance $guest (instantiate $guest))
  (func (export "run") (canon lift (core func $guest "run"))))
