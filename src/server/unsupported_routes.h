// Answers paths of the APIs spoken here that ask for something else than generating text: each gets a 501
// that says so, in its API's form, instead of "no such path".
#pragma once

#include "server/router.h"

namespace hadal::server {

void add_unsupported_routes(Router& router);

}  // namespace hadal::server
