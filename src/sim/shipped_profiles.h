// The profiles that are part of the program, as the texts of profiles/*.json.
#pragma once

namespace distca {

extern const char* const kH100Profile;
extern const char* const kH200Profile;

}  // namespace distca
