/* A package with its own cuDNN. */
#define GLUE(a, b) a##b
#define NAMED(a, b) GLUE(a, b)
int cudnnBackendExecute(void* handle, void* plan, long variant);
int cudnnFakeOuter(long variant);
int NAMED(use, NUMBER)(long variant);
int NAMED(use, NUMBER)(long variant) {
  const int result = cudnnBackendExecute((void*)1, (void*)2, variant);
  return result;
}
int NAMED(outer, NUMBER)(long variant);
int NAMED(outer, NUMBER)(long variant) {
  const int result = cudnnFakeOuter(variant);
  return result;
}
