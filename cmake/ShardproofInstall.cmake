# `cmake --install`: libraries, headers, the program, and a package for find_package(shardproof COMPONENTS ..). The
# components are the folders; each brings those that it uses.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(shardproof_components core parallel models reference sim real reports verify)
list(JOIN shardproof_components ", " shardproof_component_names)  # for a message of shardproofConfig.cmake.in
foreach(component IN LISTS shardproof_components)
  set_target_properties(shardproof_${component} PROPERTIES EXPORT_NAME ${component})
  target_include_directories(shardproof_${component} INTERFACE
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shardproof>)
  install(TARGETS shardproof_${component} EXPORT shardproofTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${component} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shardproof
    FILES_MATCHING PATTERN "*.h" PATTERN "*_body.h" EXCLUDE)
endforeach()
install(TARGETS shardproof RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(SHARDPROOF_MPI)
  install(TARGETS shardproof_pmi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
# The module finds LibTorch where the build did.
if(SHARDPROOF_TORCH)
  set_target_properties(shardproof_torch PROPERTIES INSTALL_RPATH "${LibTorch_ROOT}/lib")
  install(TARGETS shardproof_torch LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

set(shardproof_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/shardproof)
install(EXPORT shardproofTargets NAMESPACE shardproof:: DESTINATION ${shardproof_package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/shardproofConfig.cmake.in
  ${PROJECT_BINARY_DIR}/shardproofConfig.cmake INSTALL_DESTINATION ${shardproof_package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardproofConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardproofConfig.cmake ${PROJECT_BINARY_DIR}/shardproofConfigVersion.cmake
    ${CMAKE_CURRENT_LIST_DIR}/FindoneDNN.cmake
  DESTINATION ${shardproof_package_folder})
install(FILES ${PROJECT_SOURCE_DIR}/verify/data/fingerprints.json DESTINATION ${CMAKE_INSTALL_DATADIR}/shardproof)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
