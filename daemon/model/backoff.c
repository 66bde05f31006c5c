/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/backoff.h"
