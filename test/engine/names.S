/* Every hooked name of the driver jumps to the address that in_process.cc sets: the engine's entry, or the driver. */
  .section .note.GNU-stack, "", %progbits

  .macro name symbol
  .bss
  .p2align 3
  .globl engine_slot_\symbol
  .type engine_slot_\symbol, %object
engine_slot_\symbol:
  .zero 8
  .size engine_slot_\symbol, 8
  .text
  .globl \symbol
  .type \symbol, %function
  .p2align 4
\symbol:
#if defined(__x86_64__)
  jmpq *engine_slot_\symbol(%rip)
#else
  adrp x16, engine_slot_\symbol
  ldr x16, [x16, :lo12:engine_slot_\symbol]
  br x16
#endif
  .size \symbol, .-\symbol
  .endm

#define SLUICE_HOOK(elf_name, base, version, flavour, category) name elf_name
#include "hooklib/hooks.def"
