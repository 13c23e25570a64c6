# Flags and the three functions every room uses.

set(CMAKE_CXX_STANDARD 17 CACHE STRING "17 for Debian's LibTorch, 20 for a recent one")
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g1")

# Headers that most units include are parsed once: a third less compile time. What a unit should include itself goes unnoticed, so
# the presets dev, asan, ubsan and tsan build without; and ccache then shares nothing between two build folders.
option(ISTHMUS_PCH "Precompiled headers" ON)
if(ISTHMUS_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(ISTHMUS_PRECOMPILED ON)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-pthread$<SEMICOLON>-fpch-preprocess>)  # the same for all; for ccache
  set(ccache_settings ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros)
endif()

# GCC collects its garbage less often: a twelfth less compile time for no more memory.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=200>
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=400000>)

find_program(ISTHMUS_CCACHE ccache)
if(ISTHMUS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache_settings} ${ISTHMUS_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${ISTHMUS_CCACHE})
endif()

find_program(ISTHMUS_MOLD mold)
find_program(ISTHMUS_LLD ld.lld)
if(ISTHMUS_MOLD)
  add_link_options(-fuse-ld=mold)
elseif(ISTHMUS_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# A LibTorch unit takes about 1 GB to compile; two at once is enough for any laptop.
set(ISTHMUS_ENGINE_JOBS 2 CACHE STRING "LibTorch units compiled at once")
set_property(GLOBAL PROPERTY JOB_POOLS engine_pool=${ISTHMUS_ENGINE_JOBS})

add_library(isthmus_flags INTERFACE)
target_include_directories(isthmus_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(isthmus_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers
  -fno-omit-frame-pointer $<$<BOOL:${ISTHMUS_WERROR}>:-Werror>>)
if(ISTHMUS_SANITIZE)
  add_compile_options(-fsanitize=${ISTHMUS_SANITIZE})
  add_link_options(-fsanitize=${ISTHMUS_SANITIZE})
endif()

# isthmus_library(NAME SOURCES... DEPS ...): target isthmus_NAME, alias isthmus::NAME.
function(isthmus_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(isthmus_${name} STATIC ${A_SOURCES})
  add_library(isthmus::${name} ALIAS isthmus_${name})
  target_link_libraries(isthmus_${name} PUBLIC isthmus_flags ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS})
endfunction()

# isthmus_precompile(OWNER HEADERS...): OWNER holds them for every target that isthmus_precompiled() names later. What is
# compiled for a library can't serve a program, so that each has its owner.
function(isthmus_precompile owner)
  if(ISTHMUS_PRECOMPILED)
    target_link_libraries(${owner} PRIVATE isthmus_flags isthmus::proto)
    target_precompile_headers(${owner} PRIVATE ${ARGN})
  endif()
endfunction()
function(isthmus_precompiled owner)
  if(ISTHMUS_PRECOMPILED)
    foreach(target IN LISTS ARGN)
      target_precompile_headers(${target} REUSE_FROM ${owner})
    endforeach()
  endif()
endfunction()

# isthmus_test(NAME SOURCES ... DEPS ... [TIMEOUT s] [LABELS ...] [ONE_ENTRY]): a GoogleTest binary.
# ONE_ENTRY registers one ctest entry for the whole binary (for those that start slowly: LibTorch).
function(isthmus_test name)
  cmake_parse_arguments(A "ONE_ENTRY" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 120)
  endif()
  if(ISTHMUS_SANITIZE)
    math(EXPR A_TIMEOUT "4 * ${A_TIMEOUT}")  # sanitized code is several times slower
  endif()
  add_executable(${name} ${A_SOURCES})
  target_link_libraries(${name} PRIVATE isthmus_flags ${A_DEPS} GTest::gmock GTest::gtest_main)
  if(NOT torch IN_LIST A_DEPS)  # which changes how everything is compiled
    isthmus_precompiled(isthmus_test_headers ${name})
  endif()
  if(A_ONE_ENTRY)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
  else()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60
      PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}")
  endif()
endfunction()
