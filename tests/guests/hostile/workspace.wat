;; Opens what it is told to in the workspace, by WASI's own functions.
(component
  (import "wasi:clocks/wall-clock@0.2.0" (instance $clock
    (type $datetime' (record (field "seconds" u64) (field "nanoseconds" u32)))
    (export "datetime" (type (eq $datetime')))))
  (alias export $clock "datetime" (type $datetime))
  (import "wasi:filesystem/types@0.2.0" (instance $files
    (type $code' (enum
      "access" "would-block" "already" "bad-descriptor" "busy" "deadlock" "quota" "exist" "file-too-large"
      "illegal-byte-sequence" "in-progress" "interrupted" "invalid" "io" "is-directory" "loop" "too-many-links"
      "message-size" "name-too-long" "no-device" "no-entry" "no-lock" "insufficient-memory" "insufficient-space"
      "not-directory" "not-empty" "not-recoverable" "unsupported" "no-tty" "no-such-device" "overflow" "not-permitted"
      "pipe" "read-only" "invalid-seek" "text-file-busy" "cross-device"))
    (export "error-code" (type $code (eq $code')))
    (alias outer 1 $datetime (type $datetime'))
    (export "datetime" (type $datetime (eq $datetime')))
    (type $time' (variant (case "no-change") (case "now") (case "timestamp" $datetime)))
    (export "new-timestamp" (type $time (eq $time')))
    (type $at' (flags "symlink-follow"))
    (export "path-flags" (type $at (eq $at')))
    (type $open' (flags "create" "directory" "exclusive" "truncate"))
    (export "open-flags" (type $open (eq $open')))
    (type $flags' (flags
      "read" "write" "file-integrity-sync" "data-integrity-sync" "requested-write-sync" "mutate-directory"))
    (export "descriptor-flags" (type $flags (eq $flags')))
    (type $kind' (enum
      "unknown" "block-device" "character-device" "directory" "fifo" "symbolic-link" "regular-file" "socket"))
    (export "descriptor-type" (type $kind (eq $kind')))
    (type $entry' (record (field "type" $kind) (field "name" string)))
    (export "directory-entry" (type $entry (eq $entry')))
    (export "descriptor" (type $descriptor (sub resource)))
    (export "directory-entry-stream" (type $entries (sub resource)))
    (export "[method]descriptor.open-at" (func
      (param "self" (borrow $descriptor)) (param "path-flags" $at) (param "path" string) (param "open-flags" $open)
      (param "flags" $flags) (result (result (own $descriptor) (error $code)))))
    (export "[method]descriptor.create-directory-at" (func
      (param "self" (borrow $descriptor)) (param "path" string) (result (result (error $code)))))
    (export "[method]descriptor.set-times-at" (func
      (param "self" (borrow $descriptor)) (param "path-flags" $at) (param "path" string)
      (param "data-access-timestamp" $time) (param "data-modification-timestamp" $time) (result (result (error $code)))))
    (export "[method]descriptor.read-directory" (func
      (param "self" (borrow $descriptor)) (result (result (own $entries) (error $code)))))
    (export "[method]directory-entry-stream.read-directory-entry" (func
      (param "self" (borrow $entries)) (result (result (option $entry) (error $code)))))))
  (alias export $files "error-code" (type $code))
  (alias export $files "descriptor" (type $descriptor))
  (alias export $files "directory-entry-stream" (type $entries))
  (import "wasi:filesystem/preopens@0.2.0" (instance $preopens
    (alias outer 1 $descriptor (type $descriptor'))
    (export "descriptor" (type $descriptor (eq $descriptor')))
    (export "get-directories" (func (result (list (tuple (own $descriptor) string)))))))

  (core module $memory
    (memory (export "memory") 32)
    (global $free (mut i32) (i32.const 0x10000))
    ;; Frees nothing within a call; `reset` frees all.
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (local $at i32)
      (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
      (global.set $free (i32.add (local.get $at) (local.get 3)))
      (local.get $at))
    (func (export "reset") (global.set $free (i32.const 0x10000))))
  (core instance $memory (instantiate $memory))
  (core func $directories (canon lower (func $preopens "get-directories")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core func $open (canon lower (func $files "[method]descriptor.open-at") (memory (core memory $memory "memory"))))
  (core func $mkdir (canon lower (func $files "[method]descriptor.create-directory-at")
    (memory (core memory $memory "memory"))))
  (core func $times (canon lower (func $files "[method]descriptor.set-times-at") (memory (core memory $memory "memory"))))
  (core func $list (canon lower (func $files "[method]descriptor.read-directory") (memory (core memory $memory "memory"))))
  (core func $next (canon lower (func $files "[method]directory-entry-stream.read-directory-entry")
    (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (core func $close (canon resource.drop $descriptor))
  (core module $guest
    (import "memory" "memory" (memory 32))
    (import "memory" "reset" (func $reset))
    (import "host" "directories" (func $directories (param i32)))
    (import "host" "open" (func $open (param i32 i32 i32 i32 i32 i32 i32)))
    (import "host" "mkdir" (func $mkdir (param i32 i32 i32 i32)))
    (import "host" "times" (func $times (param i32 i32 i32 i32 i32 i64 i32 i32 i64 i32 i32)))
    (import "host" "list" (func $list (param i32 i32)))
    (import "host" "next" (func $next (param i32 i32)))
    (import "host" "close" (func $close (param i32)))
    ;; The workspace.
    (func $root (result i32)
      (call $directories (i32.const 0))
      (i32.load (i32.load (i32.const 0))))
    ;; Gives back a `result<_, error-code>`, whose case stands at 16 and whose code at 20.
    (func $answer (result i32)
      (i32.store8 (i32.const 32) (i32.load8_u (i32.const 16)))
      (i32.store8 (i32.const 33) (i32.load8_u (i32.const 20)))
      (i32.const 32))
    (func (export "open") (param $path i32) (param $len i32) (param $flags i32) (result i32)
      (call $open (call $root) (i32.const 1) (local.get $path) (local.get $len) (i32.const 0) (local.get $flags) (i32.const 16))
      (if (i32.eqz (i32.load8_u (i32.const 16))) (then (call $close (i32.load (i32.const 20)))))
      (call $answer))
    ;; Opens to write, and makes what is not there.
    (func (export "make") (param $path i32) (param $len i32) (result i32)
      (call $open (call $root) (i32.const 1) (local.get $path) (local.get $len) (i32.const 1) (i32.const 2) (i32.const 16))
      (if (i32.eqz (i32.load8_u (i32.const 16))) (then (call $close (i32.load (i32.const 20)))))
      (call $answer))
    (func (export "mkdir") (param $path i32) (param $len i32) (result i32)
      (call $mkdir (call $root) (local.get $path) (local.get $len) (i32.const 16))
      (i32.store8 (i32.const 32) (i32.load8_u (i32.const 16)))
      (i32.store8 (i32.const 33) (i32.load8_u (i32.const 17)))
      (i32.const 32))
    (func (export "touch") (param $path i32) (param $len i32) (param $follow i32) (result i32)
      (call $times (call $root) (local.get $follow) (local.get $path) (local.get $len)
        (i32.const 2) (i64.const 1000000000) (i32.const 0) (i32.const 2) (i64.const 2000000000) (i32.const 5) (i32.const 16))
      (i32.store8 (i32.const 32) (i32.load8_u (i32.const 16)))
      (i32.store8 (i32.const 33) (i32.load8_u (i32.const 17)))
      (i32.const 32))
    ;; Opens one file until that is refused with `quota`, and says how often it was not.
    (func (export "hoard") (param $path i32) (param $len i32) (result i32)
      (local $root i32) (local $held i32)
      (local.set $root (call $root))
      (loop $again
        (call $open (local.get $root) (i32.const 0) (local.get $path) (local.get $len) (i32.const 0) (i32.const 1) (i32.const 16))
        (if (i32.eqz (i32.load8_u (i32.const 16))) (then
          (local.set $held (i32.add (local.get $held) (i32.const 1)))
          (br $again))))
      (if (i32.ne (i32.load8_u (i32.const 20)) (i32.const 6)) (then unreachable))
      (local.get $held))
    ;; Opens and closes one file a thousand times.
    (func (export "reopen") (param $path i32) (param $len i32)
      (local $root i32) (local $left i32)
      (local.set $root (call $root))
      (local.set $left (i32.const 1000))
      (loop $again
        (call $open (local.get $root) (i32.const 0) (local.get $path) (local.get $len) (i32.const 0) (i32.const 1) (i32.const 16))
        (if (i32.load8_u (i32.const 16)) (then unreachable))
        (call $close (i32.load (i32.const 20)))
        (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1))))))
    ;; How many names the workspace has, and how many bytes those are together.
    (func (export "names") (result i64)
      (local $entries i32) (local $names i64) (local $bytes i64)
      (call $list (call $root) (i32.const 16))
      (if (i32.load8_u (i32.const 16)) (then unreachable))
      (local.set $entries (i32.load (i32.const 20)))
      (loop $again
        (call $reset)
        (call $next (local.get $entries) (i32.const 16))
        (if (i32.load8_u (i32.const 16)) (then unreachable))
        (if (i32.load8_u (i32.const 20)) (then
          (local.set $names (i64.add (local.get $names) (i64.const 1)))
          (local.set $bytes (i64.add (local.get $bytes) (i64.extend_i32_u (i32.load (i32.const 32)))))
          (br $again))))
      (i64.add (i64.mul (local.get $names) (i64.const 1000000)) (local.get $bytes))))
  (core instance $guest (instantiate $guest
    (with "memory" (instance $memory))
    (with "host" (instance
      (export "directories" (func $directories)) (export "open" (func $open)) (export "times" (func $times)) (export "mkdir" (func $mkdir))
      (export "list" (func $list)) (export "next" (func $next)) (export "close" (func $close))))))
  (func (export "open") (param "path" string) (param "flags" u8) (result (result (error $code)))
    (canon lift (core func $guest "open")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func (export "make") (param "path" string) (result (result (error $code)))
    (canon lift (core func $guest "make")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func (export "mkdir") (param "path" string) (result (result (error $code)))
    (canon lift (core func $guest "mkdir")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func (export "touch") (param "path" string) (param "follow" bool) (result (result (error $code)))
    (canon lift (core func $guest "touch")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func (export "hoard") (param "path" string) (result u32)
    (canon lift (core func $guest "hoard")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func (export "reopen") (param "path" string)
    (canon lift (core func $guest "reopen")
      (memory (core memory $memory "memory")) (realloc (core func $memory "realloc"))))
  (func (export "names") (result u64) (canon lift (core func $guest "names"))))
