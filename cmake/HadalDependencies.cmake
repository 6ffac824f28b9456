# Every third-party library is found here. Header-only targets are preferred, because Debian has no static
# libraries of these.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)

find_path(HADAL_LIBEDIT_INCLUDE histedit.h REQUIRED)
find_library(HADAL_LIBEDIT_LIBRARY edit REQUIRED)
add_library(hadal_libedit INTERFACE)
target_include_directories(hadal_libedit SYSTEM INTERFACE ${HADAL_LIBEDIT_INCLUDE})
target_link_libraries(hadal_libedit INTERFACE ${HADAL_LIBEDIT_LIBRARY})

find_path(HADAL_HWY_INCLUDE hwy/highway.h REQUIRED)
find_library(HADAL_HWY_LIBRARY hwy REQUIRED)
add_library(hadal_hwy INTERFACE)
target_include_directories(hadal_hwy SYSTEM INTERFACE ${HADAL_HWY_INCLUDE})
target_link_libraries(hadal_hwy INTERFACE ${HADAL_HWY_LIBRARY})

find_path(HADAL_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(HADAL_PCRE2_LIBRARY NAMES libpcre2-8.a pcre2-8 REQUIRED)
add_library(hadal_pcre2 INTERFACE)
target_include_directories(hadal_pcre2 SYSTEM INTERFACE ${HADAL_PCRE2_INCLUDE})
target_compile_definitions(hadal_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC)
target_link_libraries(hadal_pcre2 INTERFACE ${HADAL_PCRE2_LIBRARY})

# Boost is used header-only; the parts that can be compiled separately are compiled once, here.
find_package(Boost 1.81 REQUIRED)
add_library(hadal_boost_json STATIC ${PROJECT_SOURCE_DIR}/cmake/boost_json.cpp)
target_link_libraries(hadal_boost_json PUBLIC Boost::headers)

find_package(OpenSSL REQUIRED)
find_package(CURL 7.85 REQUIRED)
add_library(hadal_boost_net STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/cmake/boost_net.cpp)
target_compile_definitions(hadal_boost_net PUBLIC BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION
                                                  BOOST_ASIO_NO_DEPRECATED)
target_link_libraries(hadal_boost_net PUBLIC Boost::headers OpenSSL::SSL OpenSSL::Crypto Threads::Threads)

find_package(prometheus-cpp REQUIRED COMPONENTS core)

if(HADAL_TESTS AND NOT HADAL_FUZZ)
  find_package(GTest REQUIRED)
endif()
if(HADAL_BENCHES AND NOT HADAL_FUZZ)
  find_package(benchmark REQUIRED)
endif()
