# Warnings, optimisation and sanitizers that every target of the project shares.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(tidemill_options INTERFACE)
# -ffp-contract=off: a fused multiply-add appears only where a kernel asks for one, so the
# numbers do not depend on what the compiler happens to fuse.
# -Wno-missing-field-initializers: with designated initializers, leaving a field to its default is
# the point.
set(cxx_options -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers -Werror -fno-math-errno -ffp-contract=off)
set(cuda_options --expt-relaxed-constexpr -fmad=false -Werror=all-warnings)
target_compile_options(tidemill_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
target_include_directories(tidemill_options INTERFACE ${CMAKE_SOURCE_DIR}/include
  ${CMAKE_SOURCE_DIR}/src)
if(TIDEMILL_SANITIZE)
  target_compile_options(tidemill_options INTERFACE -fsanitize=${TIDEMILL_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer
    # g++ 12 takes its own std::regex for uninitialised once sanitizers keep it from inlining.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    # Asio uses fences, which g++'s thread sanitizer does not see.
    $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  target_link_options(tidemill_options INTERFACE -fsanitize=${TIDEMILL_SANITIZE})
endif()
if(TIDEMILL_FUZZ)
  # Coverage counters in every room; the fuzzers themselves add libFuzzer's main (cmake/room.cmake).
  target_compile_options(tidemill_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(tidemill_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
