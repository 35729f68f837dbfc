;; Returns 100,000 strings that are all the same 64 KiB: 6.5 GB for whoever copies them out.
(component
  (core module $guest
    (memory (export "memory") 32)
    (func (export "run") (result i32)
      (local $at i32)
      ;; The strings' places stand from 64 KiB on, after the string itself; the list's own place stands at 0x1f0000.
      (local.set $at (i32.const 0x10000))
      (loop $next
        (i32.store (local.get $at) (i32.const 0))
        (i32.store offset=4 (local.get $at) (i32.const 0x10000))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br_if $next (i32.lt_u (local.get $at) (i32.const 865536))))
      (i32.store (i32.const 0x1f0000) (i32.const 0x10000))
      (i32.store (i32.const 0x1f0004) (i32.const 100000))
      (i32.const 0x1f0000)))
  (core instance $guest (instantiate $guest))
  (func (export "run") (result (list string))
    (canon lift (core func $guest "run") (memory (core memory $guest "memory")))))
