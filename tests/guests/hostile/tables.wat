;; Takes 60,000 elements in each of two tables, and does not live with less.
(component
  (core module $guest
    (table $a 0 funcref) (table $b 0 funcref)
    (func (export "run")
      (if (i32.eq (table.grow $a (ref.null func) (i32.const 60000)) (i32.const -1)) (then unreachable))
      (if (i32.eq (table.grow $b (ref.null func) (i32.const 60000)) (i32.const -1)) (then unreachable))))
  (core instance $guest (instantiate $guest))
  (func (export "run") (canon lift (core func $guest "run"))))
