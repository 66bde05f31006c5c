/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/topic.h"
