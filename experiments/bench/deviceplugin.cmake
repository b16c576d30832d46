# The device plugin's rows of the benchmark table.
if(TARGET sluice_plugin_rig)
  add_executable(deviceplugin_bench deviceplugin_bench.cc)
  set_target_properties(deviceplugin_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_link_libraries(deviceplugin_bench PRIVATE sluice_plugin_rig)
  add_test(NAME deviceplugin_bench COMMAND deviceplugin_bench 200)
  set_tests_properties(deviceplugin_bench PROPERTIES TIMEOUT 120)
endif()

# The DRA driver beside it.
if(TARGET sluice_dra_rig)
  add_executable(dra_bench dra_bench.cc)
  set_target_properties(dra_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_link_libraries(dra_bench PRIVATE sluice_dra_rig)
  add_test(NAME dra_bench COMMAND dra_bench 100)
  set_tests_properties(dra_bench PROPERTIES TIMEOUT 120)
endif()
