/* The public header is C11 and needs nothing before it. */
#include "engine/tensor/plugin.h"

_Static_assert(offsetof(oar_plugin, major) == 4 && offsetof(oar_plugin, name) == 16,
               "size, version and name stay where every version has them");
_Static_assert(sizeof(oar_plugin_status) == 4, "a status is 32 bits");

/* Used by handshake_test.cc: a table as a C compiler fills it. */
static oar_plugin_status count(int32_t* n) {
  *n = 0;
  return OAR_PLUGIN_OK;
}
oar_plugin oar_plugin_from_c(void);
oar_plugin oar_plugin_from_c(void) {
  oar_plugin t = {.size = sizeof t, .major = OAR_PLUGIN_MAJOR, .minor = OAR_PLUGIN_MINOR, .name = "c"};
  t.device_count = count;
  return t;
}
