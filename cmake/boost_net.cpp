// Compiles the separate parts of Boost.Asio and Boost.Beast once for all users (see HadalDependencies.cmake).
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
