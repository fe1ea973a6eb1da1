# Helpers shared by every folder: warnings and sanitizers on our code only, one target a folder, tests with labels.

find_program(RT_CCACHE ccache)
if(RT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_C_COMPILER_LAUNCHER ${RT_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${RT_CCACHE})
endif()

add_library(rt_warnings INTERFACE)
target_compile_options(rt_warnings INTERFACE -Wall -Wextra -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # gcc 12 reports `"text" + std::to_string(n)` as an overlapping copy inside the library (GCC bug 105651).
  target_compile_options(rt_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND RT_SANITIZE)
  # gcc's flow analysis reports false positives in instrumented library code.
  target_compile_options(rt_warnings INTERFACE -Wno-maybe-uninitialized -Wno-tsan)
endif()

if(RT_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "RT_BUILD_FUZZERS needs clang (libFuzzer), got ${CMAKE_CXX_COMPILER_ID}: use the preset `fuzz`")
  endif()
  # Coverage counters in our libraries too, so that the fuzzer sees into the parsers.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

if(RT_SANITIZE)
  add_compile_options(-fsanitize=${RT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${RT_SANITIZE})
endif()

# rt_add_folders(a b ...): add each folder that has a CMakeLists.txt.
function(rt_add_folders)
  foreach(folder IN LISTS ARGN)
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/CMakeLists.txt)
      add_subdirectory(${folder})
    endif()
  endforeach()
endfunction()

# rt_library(NAME SOURCES a.cc ... [LINKS x y]): static library with our warnings; includes are rooted at the repository.
function(rt_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS;PRIVATE_LINKS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/plugin_sdk/include)
  target_link_libraries(${name} PUBLIC ${ARG_LINKS} PRIVATE rt_warnings ${ARG_PRIVATE_LINKS})
endfunction()

# rt_test(NAME SOURCES a_test.cc ... [LINKS x y] [LABEL ci|full] [TIMEOUT seconds] [SERIAL]): a GoogleTest binary, one ctest entry
# a binary (tests share set-up such as loaded models). `ci` tests are what .ci/run runs; `full` adds the long ones.
function(rt_test name)
  if(NOT RT_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "SERIAL" "LABEL;TIMEOUT" "SOURCES;LINKS;ARGS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL ci)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/plugin_sdk/include)
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} rt_warnings GTest::gtest_main GTest::gtest Threads::Threads)
  add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ARG_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# rt_fuzz(NAME SOURCES a_fuzz.cc ... [LINKS x y]): a libFuzzer binary, built by preset `fuzz` (clang, -DRT_BUILD_FUZZERS=ON); run it as
# build/fuzz/bin/NAME CORPUS_FOLDER -max_total_time=60.
function(rt_fuzz name)
  if(NOT RT_BUILD_FUZZERS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/plugin_sdk/include)
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} rt_warnings)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
endfunction()

# rt_bench(NAME SOURCES a_bench.cc ... [LINKS x y]): a Google Benchmark binary, built with -DRT_BUILD_BENCHES=ON.
function(rt_bench name)
  if(NOT RT_BUILD_BENCHES)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/plugin_sdk/include)
  target_link_libraries(${name} PRIVATE ${ARG_LINKS} rt_warnings benchmark::benchmark_main Threads::Threads)
endfunction()

# rt_plugin(NAME SOURCES plugin.cc [LINKS x y]): shared library librt_<name>.so in <build>/plugins that exports the entry point alone.
# Build-time rules of the ABI: hidden symbols, no unique symbols, everything resolved at link time, never unloaded.
function(rt_plugin name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_library(rt_plugin_${name} SHARED ${ARG_SOURCES})
  set_target_properties(rt_plugin_${name} PROPERTIES OUTPUT_NAME rt_${name} LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins)
  target_include_directories(rt_plugin_${name} PRIVATE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/plugin_sdk/include)
  target_compile_options(rt_plugin_${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>)
  target_link_libraries(rt_plugin_${name} PRIVATE rt_warnings ${ARG_LINKS})
  target_link_options(rt_plugin_${name} PRIVATE
    -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/plugin.map -Wl,--exclude-libs,ALL -Wl,-z,now,-z,relro,-z,nodelete)
  set_target_properties(rt_plugin_${name} PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/plugin.map)
  if(NOT RT_SANITIZE)
    target_link_options(rt_plugin_${name} PRIVATE -Wl,-z,defs)  # sanitizer runtimes resolve in the host
  endif()
  set_property(GLOBAL APPEND PROPERTY RT_PLUGIN_TARGETS rt_plugin_${name})
  install(TARGETS rt_plugin_${name} LIBRARY DESTINATION lib/deltart/plugins)
endfunction()

# rt_architectures(FAMILY a.yaml ...): makes architecture files findable beside the binaries and installs them.
function(rt_architectures family)
  foreach(file IN LISTS ARGN)
    get_filename_component(base ${file} NAME)
    configure_file(${file} ${CMAKE_BINARY_DIR}/share/deltart/arch/${family}/${base} COPYONLY)
    install(FILES ${file} DESTINATION share/deltart/arch/${family})
  endforeach()
endfunction()
