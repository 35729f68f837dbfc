;; Takes 32 MiB in each of three memories, and does not live with less.
(component
  (core module $guest
    (memory $a 0) (memory $b 0) (memory $c 0)
    (func (export "run")
      (if (i32.eq (memory.grow $a (i32.const 512)) (i32.const -1)) (then unreachable))
      (if (i32.eq (memory.grow $b (i32.const 512)) (i32.const -1)) (then unreachable))
      (if (i32.eq (memory.grow $c (i32.const 512)) (i32.const -1)) (then unreachable))))
  (core instance $guest (instantiate $guest))
  (func (export "run") (canon lift (core func $guest "run"))))
