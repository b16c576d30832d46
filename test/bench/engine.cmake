# The engine's micro-benchmark (test/gpu/run and scripts start it with and without the hook).
include(SluiceCuda)
add_executable(engine_micro ${CMAKE_CURRENT_LIST_DIR}/engine_micro.cc)
set_target_properties(engine_micro PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(engine_micro PRIVATE sluice::cuda_headers ${CMAKE_DL_LIBS})
target_link_options(engine_micro PRIVATE -static-libstdc++ -static-libgcc)
