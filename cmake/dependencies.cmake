# Debian 12 packages only; each one and its reason is in docs/dependencies.md.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
find_package(Boost 1.81 REQUIRED)  # headers only
find_package(OpenSSL REQUIRED)
