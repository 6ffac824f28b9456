// Answers paths of the supported APIs whose purpose is not text generation: each gets a 501 error that says
// so, in its API's form, instead of "no such path".
#pragma once

#include "server/router.h"

namespace hadal::server {

void add_unsupported_routes(Router& router);

}  // namespace hadal::server
