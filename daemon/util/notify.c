/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/util/notify.h"
