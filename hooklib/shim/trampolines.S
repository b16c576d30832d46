/* One exported trampoline for each row of CUDA and NVML: a program that links these libraries finds the shim's first. It jumps through
 * a slot. For an empty slot it calls shim_resolve, which may load the engine, and keeps every argument register. */
  .section .note.GNU-stack, "", %progbits

  .bss
  .p2align 6
  .globl shim_slots
  .hidden shim_slots
  .type shim_slots, %object
shim_slots:
#define SLUICE_HOOK(elf_name, base, version, flavour, category) .zero 8
#include "hooklib/hooks.def"
#define SLUICE_NVML(name) .zero 8
#include "hooklib/hooks.def"
  .size shim_slots, .-shim_slots

  .text
#if defined(__x86_64__)
  .macro trampoline name, row
  .globl \name
  .type \name, %function
  .p2align 4
\name:
  .cfi_startproc
  endbr64
  movq (shim_slots + 8 * (\row))(%rip), %r11
  testq %r11, %r11
  je 1f
  jmpq *%r11
1:
  movl $(\row), %r11d
  jmp shim_slow
  .cfi_endproc
  .size \name, .-\name
  .endm

  .macro library_trampoline name, row
  .globl \name
  .type \name, %function
  .p2align 4
\name:
  .cfi_startproc
  endbr64
  movl $(\row), %r11d
  jmp shim_slow
  .cfi_endproc
  .size \name, .-\name
  .endm

  .macro bound_trampolines row
  .irp copy, 0, 1, 2, 3
  .p2align 4
  endbr64
  movl $(65536 + 4 * ((\row) - before_bound - 1) + \copy), %r11d /* SHIM_BOUND_BASE */
  jmp shim_slow
  .endr
  .p2align 4
  .endm

  .type shim_slow, %function
  .p2align 4
shim_slow:
  .cfi_startproc
  /* The caller's call left the stack at 8 mod 16: 184 more bytes align it for ours. */
  subq $184, %rsp
  .cfi_adjust_cfa_offset 184
  movq %rdi, 0(%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movups %xmm2, 80(%rsp)
  movups %xmm3, 96(%rsp)
  movups %xmm4, 112(%rsp)
  movups %xmm5, 128(%rsp)
  movups %xmm6, 144(%rsp)
  movups %xmm7, 160(%rsp)
  movq %rax, 176(%rsp)
  movl %r11d, %edi
  movq 184(%rsp), %rsi
  callq shim_resolve
  movq %rax, %r11
  movq 0(%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  movups 48(%rsp), %xmm0
  movups 64(%rsp), %xmm1
  movups 80(%rsp), %xmm2
  movups 96(%rsp), %xmm3
  movups 112(%rsp), %xmm4
  movups 128(%rsp), %xmm5
  movups 144(%rsp), %xmm6
  movups 160(%rsp), %xmm7
  movq 176(%rsp), %rax
  addq $184, %rsp
  .cfi_adjust_cfa_offset -184
  jmpq *%r11
  .cfi_endproc
  .size shim_slow, .-shim_slow

#elif defined(__aarch64__)
  .macro trampoline name, row
  .globl \name
  .type \name, %function
  .p2align 4
\name:
  .cfi_startproc
  hint #34 /* bti c */
  adrp x16, shim_slots + 8 * (\row)
  ldr x16, [x16, :lo12:shim_slots + 8 * (\row)]
  cbz x16, 1f
  br x16
1:
  mov w17, #(\row)
  b shim_slow
  .cfi_endproc
  .size \name, .-\name
  .endm

  .macro library_trampoline name, row
  .globl \name
  .type \name, %function
  .p2align 4
\name:
  .cfi_startproc
  hint #34 /* bti c */
  mov w17, #(\row)
  b shim_slow
  .cfi_endproc
  .size \name, .-\name
  .endm

  .macro bound_trampolines row
  .irp copy, 0, 1, 2, 3
  .p2align 4
  hint #34
  movz w17, #(4 * ((\row) - before_bound - 1) + \copy)
  movk w17, #1, lsl #16 /* SHIM_BOUND_BASE */
  b shim_slow
  .endr
  .p2align 4
  .endm

  .type shim_slow, %function
  .p2align 4
shim_slow:
  .cfi_startproc
  stp x29, x30, [sp, #-224]!
  .cfi_adjust_cfa_offset 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  stp x0, x1, [sp, #16]
  stp x2, x3, [sp, #32]
  stp x4, x5, [sp, #48]
  stp x6, x7, [sp, #64]
  str x8, [sp, #80]
  stp q0, q1, [sp, #96]
  stp q2, q3, [sp, #128]
  stp q4, q5, [sp, #160]
  stp q6, q7, [sp, #192]
  mov w0, w17
  mov x1, x30
  bl shim_resolve
  mov x16, x0
  ldp x0, x1, [sp, #16]
  ldp x2, x3, [sp, #32]
  ldp x4, x5, [sp, #48]
  ldp x6, x7, [sp, #64]
  ldr x8, [sp, #80]
  ldp q0, q1, [sp, #96]
  ldp q2, q3, [sp, #128]
  ldp q4, q5, [sp, #160]
  ldp q6, q7, [sp, #192]
  ldp x29, x30, [sp], #224
  .cfi_adjust_cfa_offset -224
  .cfi_restore x29
  .cfi_restore x30
  br x16
  .cfi_endproc
  .size shim_slow, .-shim_slow
#else
#error "no trampolines for this architecture"
#endif

  .globl shim_bound
  .hidden shim_bound
#define SLUICE_HOOK(elf_name, base, version, flavour, category) trampoline elf_name, __COUNTER__
#include "hooklib/hooks.def"
#define SLUICE_NVML(name) trampoline name, __COUNTER__
#include "hooklib/hooks.def"
/* Other libraries' functions: no slot, because the target depends on the caller. */
#define SLUICE_LIB(symbol, soname_prefix) library_trampoline symbol, __COUNTER__
#include "hooklib/hooks.def"

/* The addresses that dlsym returns for them: SHIM_COPIES (4) for each row, one for each copy of the library. */
  .p2align 4
shim_bound:
  .set before_bound, __COUNTER__
#define SLUICE_LIB(symbol, soname_prefix) bound_trampolines __COUNTER__
#include "hooklib/hooks.def"
