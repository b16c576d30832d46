# The engine's micro-benchmark (test/gpu/run and scripts start it with and without the hook).
include(SluiceCuda)
add_executable(engine_micro ${CMAKE_CURRENT_LIST_DIR}/engine_micro.cc)
set_target_properties(engine_micro PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(engine_micro PRIVATE sluice::cuda_headers ${CMAKE_DL_LIBS})
target_link_options(engine_micro PRIVATE -static-libstdc++ -static-libgcc)
# The residency policy alone, over a trace, beside the offline optimum.
if(TARGET sluice_core AND TARGET sluice_trace)
  add_executable(residency_bench ${CMAKE_CURRENT_LIST_DIR}/residency_bench.cc)
  set_target_properties(residency_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/test)
  target_link_libraries(residency_bench PRIVATE sluice_core sluice_trace)
endif()
