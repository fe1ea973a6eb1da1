# Test data: models/zoo/ is used where it lies; the archives of tests/data/ are unpacked into the build folder.

# rt_unpack_test_data(): unpacks each tests/data/*.tar.xz into ${CMAKE_BINARY_DIR}/testdata at configure time, unless its
# stamp there already holds the hash of the archive, and defines the INTERFACE target rt_testdata, which gives a test
#   RT_TESTDATA_DIR   .../testdata, with models/tiny-kda, models/micro/<name>, golden/<name> and evals/
#   RT_ZOO_DIR        models/zoo of the source tree, with tiny-gdn
# A changed archive re-runs the configure step.
function(rt_unpack_test_data)
  set(out ${CMAKE_BINARY_DIR}/testdata)
  file(GLOB archives CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/data/*.tar.xz)
  foreach(archive IN LISTS archives)
    set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${archive})
    file(SHA256 ${archive} hash)
    get_filename_component(name ${archive} NAME)
    set(stamp ${out}/.${name}.sha256)
    set(unpacked "")
    if(EXISTS ${stamp})
      file(READ ${stamp} unpacked)
    endif()
    if(NOT unpacked STREQUAL hash)
      message(STATUS "Unpacking ${name}")
      file(REMOVE ${stamp})
      file(ARCHIVE_EXTRACT INPUT ${archive} DESTINATION ${out})
      file(WRITE ${stamp} ${hash})
    endif()
  endforeach()

  add_library(rt_testdata INTERFACE)
  target_compile_definitions(rt_testdata INTERFACE
    RT_TESTDATA_DIR="${out}" RT_ZOO_DIR="${CMAKE_SOURCE_DIR}/models/zoo")
endfunction()
