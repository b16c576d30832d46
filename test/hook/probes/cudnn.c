/* A fake cuDNN, in versions 8 and 9. */
int cudnnBackendExecute(void* handle, void* plan, long variant);
int cudnnBackendExecute(void* handle, void* plan, long variant) {
  return handle == (void*)1 && plan == (void*)2 ? NUMBER * 1000 + (int)variant : -1;
}
/* Calls itself through its exported name, as the real one's parts do. */
int cudnnFakeOuter(long variant);
int cudnnFakeOuter(long variant) {
  const int result = cudnnBackendExecute((void*)1, (void*)2, variant);
  return result;
}
