// The one translation unit with the bodies of Asio and Beast (separate compilation keeps the others small).
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
