/* A library that initialises CUDA in its constructor, as plugins do: the loader's lock is held meanwhile. */
int cuInit(unsigned flags);
int constructed;
__attribute__((constructor)) static void construct(void) { constructed = cuInit(1); }
