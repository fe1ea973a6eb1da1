/* Linked against by a bad plugin, and not there when that plugin is loaded. */
__attribute__((visibility("default"))) int rt_case_from_missing_library(void);
int rt_case_from_missing_library(void) { return 1; }
