/* The toolkit's stub of the driver: every call answers CUDA_ERROR_STUB_LIBRARY. */
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return (void)flags, 34; }
int cuMemAlloc_v2(unsigned long* pointer, unsigned long bytes);
int cuMemAlloc_v2(unsigned long* pointer, unsigned long bytes) { return (void)pointer, (void)bytes, 34; }
