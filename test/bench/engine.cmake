# The engine's micro-benchmark (test/gpu/run and scripts start it with and without the hook).
include(SluiceCuda)
add_executable(engine_micro ${CMAKE_CURRENT_LIST_DIR}/engine_micro.cc)
set_target_properties(engine_micro PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(engine_micro PRIVATE sluice::cuda_headers ${CMAKE_DL_LIBS})
target_link_options(engine_micro PRIVATE -static-libstdc++ -static-libgcc)
# Other engines' rules on the simulated card.
if(TARGET sluice_player)
  find_package(CLI11 CONFIG REQUIRED)
  add_executable(peer_replay ${CMAKE_CURRENT_LIST_DIR}/peer_replay.cc)
  set_target_properties(peer_replay PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test BUILD_RPATH "$ORIGIN/../lib/replay")
  target_link_libraries(peer_replay PRIVATE sluice_player CLI11::CLI11)
  target_link_options(peer_replay PRIVATE -Wl,--export-dynamic-symbol=nanosleep)
  # The table's whole way once, on the smallest trace: a report. The full one is made by hand (docs/benchmarks.md).
  if(TARGET sluice_engine)
    add_test(NAME simulated_benchmark COMMAND ${CMAKE_CURRENT_LIST_DIR}/residency_table.py --build ${CMAKE_BINARY_DIR} --traces decode
      --budgets 2 --out ${CMAKE_BINARY_DIR}/simulated_benchmark.json)
    set_tests_properties(simulated_benchmark PROPERTIES TIMEOUT 300)
  endif()
endif()
# The residency policy alone, over a trace, beside the offline optimum.
if(TARGET sluice_core AND TARGET sluice_trace)
  add_executable(residency_bench ${CMAKE_CURRENT_LIST_DIR}/residency_bench.cc)
  set_target_properties(residency_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_link_libraries(residency_bench PRIVATE sluice_core sluice_trace)
endif()
