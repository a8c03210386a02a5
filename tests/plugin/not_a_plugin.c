/* A shared library that exports something, but no plug-in table. */
__attribute__((visibility("default"))) int oar_not_a_plugin(void);
int oar_not_a_plugin(void) { return 1; }
