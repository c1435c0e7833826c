# The row-per-point table; its points are in the journal since 0003.

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("metrics", "0003_carry_points")]

    operations = [migrations.DeleteModel(name="Point")]
