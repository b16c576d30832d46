/* A library that does not find the shim's link, like an engine from before the link had its constant head. */
int sluice_engine_start(void* link);
int sluice_engine_start(void* link) { return link != 0; }
