# xgrammar: compiles schemas, regexes and grammars into token masks (src/sample/grammar.h).
#
# Its C++ core is built from the source distribution on PyPI, which scripts/bootstrap downloads and
# unpacks; nothing is downloaded here. The build files that come with it are not used: they cannot
# be told to leave out the Python bindings, and they make link-time-optimised objects that every
# program would compile again.
set(XGRAMMAR_VERSION 0.2.2)
set(XGRAMMAR_SOURCE_DIR ${CMAKE_SOURCE_DIR}/.cache/xgrammar-${XGRAMMAR_VERSION} CACHE PATH
  "Unpacked source distribution of xgrammar ${XGRAMMAR_VERSION}")
if(NOT EXISTS ${XGRAMMAR_SOURCE_DIR}/include/xgrammar/xgrammar.h)
  message(FATAL_ERROR "xgrammar ${XGRAMMAR_VERSION} is not in ${XGRAMMAR_SOURCE_DIR}: run\n"
    "  scripts/bootstrap build\n"
    "once, with network, or point -DXGRAMMAR_SOURCE_DIR at an unpacked "
    "xgrammar-${XGRAMMAR_VERSION}.tar.gz of PyPI")
endif()

file(GLOB xgrammar_sources ${XGRAMMAR_SOURCE_DIR}/cpp/*.cc ${XGRAMMAR_SOURCE_DIR}/cpp/support/*.cc)
add_library(xgrammar STATIC ${xgrammar_sources})
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON
  EXPORT_COMPILE_COMMANDS OFF)
# Optimised in every build type: unoptimised it is too slow for the tests of its callers.
# Customised log: src/sample/grammar_log.cpp defines where its messages go.
target_compile_options(xgrammar PRIVATE -w -O2)
set(XGRAMMAR_DEFINITIONS XGRAMMAR_LOG_CUSTOMIZE=1 XGRAMMAR_ENABLE_CPPTRACE=0
  XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
target_compile_definitions(xgrammar PRIVATE ${XGRAMMAR_DEFINITIONS})
target_include_directories(xgrammar SYSTEM PUBLIC ${XGRAMMAR_SOURCE_DIR}/include
  ${XGRAMMAR_SOURCE_DIR}/3rdparty/dlpack/include
  PRIVATE ${XGRAMMAR_SOURCE_DIR}/3rdparty/picojson)
# The two archives need each other.
target_link_libraries(xgrammar PUBLIC Threads::Threads INTERFACE tidemill_sample)
# Bounds for its compiler: src/sample/grammar_deadline.h.
set(XGRAMMAR_WRAPPED
  _ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev
  _ZN8xgrammar14GrammarBuilder11AddSequenceERKSt6vectorIiSaIiEE
  _ZN8xgrammar14GrammarBuilder10AddChoicesERKSt6vectorIiSaIiEE
  _ZN8xgrammar14GrammarBuilder14AddGrammarExprERKNS_7Grammar4Impl11GrammarExprE
  _ZN8xgrammar3FSM8AddStateEv
  _ZN8xgrammar15FSMWithStartEnd16AddToCompleteFSMEPNS_3FSMEPSt6vectorIiSaIiEE
  _ZNK8xgrammar15FSMWithStartEnd21MergeEquivalentStatesEi
  _ZN8xgrammar12EarleyParser7AdvanceEhb)
set(XGRAMMAR_WRAP_FLAGS ${XGRAMMAR_WRAPPED})
list(TRANSFORM XGRAMMAR_WRAP_FLAGS PREPEND "-Wl,--wrap=")
target_link_options(xgrammar INTERFACE ${XGRAMMAR_WRAP_FLAGS})
list(JOIN XGRAMMAR_WRAP_FLAGS " " XGRAMMAR_WRAP_FLAGS)  # for tidemill.pc
# Sources that read headers inside it.
set_source_files_properties(${CMAKE_SOURCE_DIR}/src/sample/grammar_deadline.cpp
  ${CMAKE_SOURCE_DIR}/src/sample/grammar_endless.cpp PROPERTIES
  COMPILE_OPTIONS "-isystem${XGRAMMAR_SOURCE_DIR}/cpp;-isystem${XGRAMMAR_SOURCE_DIR}/3rdparty/picojson"
  COMPILE_DEFINITIONS "${XGRAMMAR_DEFINITIONS}")
if(TIDEMILL_SANITIZE)
  target_compile_options(xgrammar PRIVATE -fsanitize=${TIDEMILL_SANITIZE} -fno-omit-frame-pointer)
endif()
if(TIDEMILL_FUZZ)
  target_compile_options(xgrammar PRIVATE -fsanitize=fuzzer-no-link)
endif()
