# tidemill_room(NAME DEPS ...): the library tidemill_NAME from src/NAME/**.cpp, its unit tests
# (NAME_test from *_test.cpp), its fuzz targets (*_fuzz.cpp, one program each).
function(tidemill_room name)
  cmake_parse_arguments(ROOM "" "" "DEPS" ${ARGN})
  set(dir ${CMAKE_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cpp)
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER sources EXCLUDE REGEX "(_(test|bench|fuzz)|/main)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cpp$")

  # Kernels of one instruction set, chosen at run time: only these files get its flags.
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # -O3 in debug builds too: what is inlined cannot be shared with the rest of the program.
    set(avx2 -O3 -mavx2 -mfma -mf16c)
    # g++ 12 calls the deliberately undefined operands of its own intrinsics uninitialised.
    set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq
      $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>
      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    foreach(source ${sources} ${tests})
      if(source MATCHES "_avx2\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${avx2}")
      elseif(source MATCHES "_avx512\\.cpp$")
        set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${avx512}")
      elseif(source MATCHES "_avx512bf16\\.cpp$")
        set_source_files_properties(${source} PROPERTIES
          COMPILE_OPTIONS "${avx512};-mavx512bf16;-mavx512vbmi")
      elseif(source MATCHES "_amx(_test)?\\.cpp$")
        set_source_files_properties(${source} PROPERTIES
          COMPILE_OPTIONS "${avx512};-mavx512bf16;-mavx512vbmi;-mamx-tile;-mamx-bf16")
      endif()
    endforeach()
  else()
    list(FILTER sources EXCLUDE REGEX "_(avx2|avx512|avx512bf16|amx)\\.cpp$")
    list(FILTER tests EXCLUDE REGEX "_amx_test\\.cpp$")
  endif()

  if(TIDEMILL_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${dir}/*.cu)
    set(test_kernels ${kernels})
    list(FILTER kernels EXCLUDE REGEX "_test\\.cu$")
    list(FILTER test_kernels INCLUDE REGEX "_test\\.cu$")
    list(APPEND sources ${kernels})
    list(APPEND tests ${test_kernels})
    list(FILTER sources EXCLUDE REGEX "/cuda/absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/cuda_.*\\.cpp$")
    list(FILTER tests EXCLUDE REGEX "/cuda/cuda_.*\\.cpp$")
  endif()

  if(sources)
    add_library(tidemill_${name} STATIC ${sources})
    target_link_libraries(tidemill_${name} PUBLIC tidemill_options ${ROOM_DEPS})
  else()
    add_library(tidemill_${name} INTERFACE)
    target_link_libraries(tidemill_${name} INTERFACE tidemill_options ${ROOM_DEPS})
  endif()

  if(TIDEMILL_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE tidemill_${name} GTest::gmock GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE TIDEMILL_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST
      PROPERTIES TIMEOUT 300)
  endif()

  if(TIDEMILL_FUZZ)
    foreach(source ${fuzzers})
      get_filename_component(fuzzer ${source} NAME_WE)
      add_executable(${fuzzer} ${source})
      target_link_libraries(${fuzzer} PRIVATE tidemill_${name})
      target_link_options(${fuzzer} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()
