// The classes that are made of parts of a decoder layer.

#pragma once

#include <nanobind/nanobind.h>

namespace pillion {

void bind_layers(nanobind::module_& module);
void bind_drafter(nanobind::module_& module);

}  // namespace pillion
