/* A library that initialises CUDA in its constructor, as plugins do, while the loader's lock is held. */
int cuInit(unsigned flags);
int constructed;
__attribute__((constructor)) static void construct(void) { constructed = cuInit(1); }
