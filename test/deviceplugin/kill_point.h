/* Shared between a test and the plugin that it kills; see kill_point.c. */
#ifndef SLUICE_TEST_DEVICEPLUGIN_KILL_POINT_H_
#define SLUICE_TEST_DEVICEPLUGIN_KILL_POINT_H_

#define KILL_POINT_ACTS 400
#define KILL_POINT_NAME 64

struct KillPoint {
  int armed; /* acts count while it is set */
  /* The act before which to kill: its name, such as "rename allocation.json", and which act of that name. A name ends
   * before its first digit, since temporary names and ids differ from run to run. An empty name: none. */
  char name[KILL_POINT_NAME];
  int ordinal;
  int matched; /* acts of that name so far */
  int killed;
  int acts; /* number of acts so far, whose names follow */
  char seen[KILL_POINT_ACTS][KILL_POINT_NAME];
};

#endif /* SLUICE_TEST_DEVICEPLUGIN_KILL_POINT_H_ */
