# A tenant of a shared GPU, for test/gpu/tenants.
include(SluiceCuda)
add_executable(tenant ${CMAKE_CURRENT_LIST_DIR}/tenant.cc)
set_target_properties(tenant PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(tenant PRIVATE sluice::cuda_headers ${CMAKE_DL_LIBS})
target_link_options(tenant PRIVATE -static-libstdc++ -static-libgcc)
# A sanitizer's program needs its own libraries, which no pack takes along.
if(TARGET sluice-agent AND TARGET sluice AND TARGET sluice_engine AND TARGET simgpu_cu AND NOT SLUICE_SANITIZE)
  add_test(NAME "gpu: the packed tenants run on another machine"
    COMMAND ${CMAKE_SOURCE_DIR}/test/gpu/tenants_test.py ${CMAKE_BINARY_DIR})
  set_tests_properties("gpu: the packed tenants run on another machine" PROPERTIES TIMEOUT 120)
endif()
