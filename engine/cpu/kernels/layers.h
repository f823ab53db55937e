// Whole parts of a decoder layer as one operation each.

#pragma once

#include <nanobind/nanobind.h>

namespace pillion {

void bind_layers(nanobind::module_& module);

}  // namespace pillion
