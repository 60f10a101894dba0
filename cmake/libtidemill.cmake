# The engine as a library: `libtidemill` (shared: the C interface and nothing else is visible) and
# libtidemill.a (C and C++), both over include/tidemill.
include(GNUInstallDirs)

add_library(libtidemill SHARED ${CMAKE_SOURCE_DIR}/src/engine/c_api.cpp)
set_target_properties(libtidemill PROPERTIES OUTPUT_NAME tidemill
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/libtidemill.map)
target_link_libraries(libtidemill PRIVATE tidemill_engine)
target_include_directories(libtidemill INTERFACE ${CMAKE_SOURCE_DIR}/include)
# The map also hides what templates of other libraries would export.
target_link_options(libtidemill PRIVATE
  LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/libtidemill.map)
if(NOT TIDEMILL_SANITIZE)
  target_link_options(libtidemill PRIVATE LINKER:--no-undefined)
endif()

# All rooms and xgrammar in one archive.
set(parts base text model ops state forward sched sample engine)
list(TRANSFORM parts PREPEND tidemill_)
list(APPEND parts xgrammar)
set(script "CREATE libtidemill.a\n")
foreach(part ${parts})
  string(APPEND script "ADDLIB $<TARGET_FILE:${part}>\n")
endforeach()
file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/libtidemill.mri CONTENT "${script}SAVE\nEND\n")
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/libtidemill.a
  COMMAND ${CMAKE_AR} -M < libtidemill.mri
  DEPENDS ${parts} ${CMAKE_BINARY_DIR}/libtidemill.mri
  WORKING_DIRECTORY ${CMAKE_BINARY_DIR} COMMENT "Collecting libtidemill.a")
add_custom_target(libtidemill_static ALL DEPENDS ${CMAKE_BINARY_DIR}/libtidemill.a)

file(RELATIVE_PATH include_from_pkgconfig ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
  ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_SOURCE_DIR}/cmake/tidemill.pc.in ${CMAKE_BINARY_DIR}/tidemill.pc @ONLY)
install(TARGETS libtidemill LIBRARY)
install(FILES ${CMAKE_BINARY_DIR}/libtidemill.a DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_BINARY_DIR}/tidemill.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/tidemill DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
