# A tenant of a shared card, for test/gpu/tenants.
include(SluiceCuda)
add_executable(tenant ${CMAKE_CURRENT_LIST_DIR}/tenant.cc)
set_target_properties(tenant PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(tenant PRIVATE sluice::cuda_headers ${CMAKE_DL_LIBS})
target_link_options(tenant PRIVATE -static-libstdc++ -static-libgcc)
