-- Ends a silence at $now. Inputs: alert_silences.
UPDATE alert_silences SET expires_at = least(expires_at, $now::TIMESTAMPTZ) WHERE id = $id
