/* A library that is no engine of ours: it knows no link. An engine from before the link had its constant head was such
 * a one. */
int sluice_engine_start(void* link);
int sluice_engine_start(void* link) { return link != 0; }
